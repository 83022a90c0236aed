"""One file per format of data: the columns of a table, or plain text for a kind of model."""
