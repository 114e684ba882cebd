"""The web page: its document, scripts and styles in `static/`, and the handlers that serve them.
Imports model, http and outputs; loaded only when a client opens the page."""
