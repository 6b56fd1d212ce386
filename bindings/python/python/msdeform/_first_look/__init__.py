"""What `python -m msdeform` looks at: the machine, whether results are right, how long calls take."""
