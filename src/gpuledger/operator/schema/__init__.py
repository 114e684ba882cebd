"""Schema nodes and sections: untrusted resources in; problems, parsed sections and OpenAPI schemas out.

Imports nothing but the standard library.
"""
