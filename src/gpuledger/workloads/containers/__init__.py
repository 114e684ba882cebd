"""JSON from the Docker and Podman sockets in; names of running containers by id out.

May import http, host and model.
"""
