"""`python -m fairlead` is the `fairlead` command."""

from fairlead.cli import main

main()
