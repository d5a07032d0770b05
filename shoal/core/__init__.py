"""The nouns and the pure rules over them. Standard library only; imports nothing else of Shoal.

Units everywhere: seconds since the study's start, samples, samples/s, GiB.
"""
