"""Your own graders. Test them with: pip install pytest; python -m pytest"""

import quintain

MAX_CHARACTERS = 200


@quintain.grader
def brief(output: str) -> bool:
    """Pass an answer of at most 200 characters."""
    return len(output) <= MAX_CHARACTERS
