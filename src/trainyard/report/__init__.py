"""Reports for people: the dashboard (text, JSON, Markdown, HTML) and the Slack messages. It sends nothing."""
