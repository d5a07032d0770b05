"""What a journal tells, as values.

Who held each slot and when, each trial's figures, and how figures read as text.
"""
