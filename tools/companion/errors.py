class CannotTrain(Exception):
    """Why no companion can be made of what was given, and what to do; for people."""
