"""Mail from elsewhere, brought into users' folders through a running node.

`mail_import` imports a user's source, `folder_import` a folder of it; `memory` keeps what earlier imports have taken,
`taking_over` brings what has changed at the source since; `many_users` imports for a list of users.
"""
