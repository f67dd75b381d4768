"""The pictures of docs/pictures/, made by what is really running: see `python -m scripts.pictures --help`."""
