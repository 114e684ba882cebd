"""Pure functions that render a resource: GpuMonitor and RenderContext in; objects and problems out.

May import the parent's specs and schema, dialects and model; never the API client.
"""
