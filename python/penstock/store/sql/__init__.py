"""The database: connections, tables, migrations, and the translation of its errors."""
