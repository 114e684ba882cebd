"""The page of the fleet: files in, HTTP responses out. It shares scripts and styles with the page of a node.
May import web and http.
"""
