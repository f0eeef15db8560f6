"""The database: connections, tables, migrations, and the translation of database errors."""
