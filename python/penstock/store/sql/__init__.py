"""The database: connections, tables, migrations, and its faults as errors."""
