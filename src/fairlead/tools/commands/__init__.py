"""The commands of the tools; `fairlead.cli` finds them by name and loads each only when it is used."""
