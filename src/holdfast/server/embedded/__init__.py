"""The Python surface: sessions of the database that this process has opened."""
