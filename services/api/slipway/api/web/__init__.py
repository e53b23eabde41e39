"""The web page: its frame, its scripts and styles, and the page of a trace."""
