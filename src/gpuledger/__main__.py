"""`python -m gpuledger`."""

from gpuledger.cli.main import main

raise SystemExit(main())
