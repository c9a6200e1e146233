"""Every child process: own group, dies with its parent, reaped on every path."""
