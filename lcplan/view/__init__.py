"""Views: text, Markdown and JSON of the same objects. Logic never prints, views never decide."""
