"""Everything a person looks at: pictures, tables, pages. A view reads results, never a model."""
