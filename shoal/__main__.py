"""`python -m shoal`: the command line."""

from shoal.cli import main

main()
