"""Reports of a record: JUnit XML, an HTML page, a summary."""
