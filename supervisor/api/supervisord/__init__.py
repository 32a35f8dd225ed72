"""supervisord's own protocol over our servers, so that supervisorctl, exporters and UIs work.

Each server is a group of its own name with one process of the same name. What is knowingly different is listed in
docs/supervisorctl.md.
"""
