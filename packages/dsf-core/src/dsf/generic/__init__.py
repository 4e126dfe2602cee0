"""The vendor package that ships in core: asked last, everything derived from the HDL. It runs a chip that has no
plugin, and it is the fallback of every chip that has one."""
