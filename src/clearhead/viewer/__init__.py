"""The viewer: one page that walks through the attention of a Run, served or from one file."""
