"""Answers as people read them: text, HTML, Markdown, figures."""
