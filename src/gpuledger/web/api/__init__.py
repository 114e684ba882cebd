"""The JSON API below `/api/v1/`: takes NodeStates and the ledger; answers with JSON and server-sent events.
Imports what web imports; most modules load with the first request (not api, events, recent and snapshot)."""
