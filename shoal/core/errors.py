"""The error that all rooms raise for what a user can mend."""


class StudyError(RuntimeError):
    """The study cannot be opened, or cannot do what is asked for.

    The message gives the rule, the values and the remedy.
    """
