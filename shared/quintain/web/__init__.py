"""What the pages of `quintain view` and of the gateway share: style, script, frame, headers, and visible text."""
