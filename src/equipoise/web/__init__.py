"""The dashboard: frames, forms and routing around the pages that report draws. Needs the extra `web`."""
