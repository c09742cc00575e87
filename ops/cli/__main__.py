"""`python -m ops.cli`: the `turnlog` command without its script. `turnlog up` starts its processes so."""

from ops.cli import main

main()
