"""The parts of `python -m msdeform`: facts about the machine, checks of results, and times."""
