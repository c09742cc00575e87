"""SQL over the journal's tables: of a live system, an archive, or an export."""
