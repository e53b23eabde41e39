"""What every route shares: its row, strict bodies, errors, documents, streams, the log line, the audit log."""
