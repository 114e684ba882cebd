"""What people open in a browser: takes each NodeState and the ledger; answers with the web page and the API.
Imports model, http, ledger and outputs; never node, terminal, config or app."""
