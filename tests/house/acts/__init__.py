"""A case for every setting: two configs that differ in it alone, and what comes out differently."""
