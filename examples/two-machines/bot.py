"""The program under test: the question is on stdin, the answer on stdout."""

import sys

print("Paris" if "France" in sys.stdin.read() else "I do not know")
