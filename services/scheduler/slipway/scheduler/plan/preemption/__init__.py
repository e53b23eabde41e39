"""Making room: which running work goes so that other work can be placed."""
