"""Who calls and what they may do: tokens, logins, sign-ins, and the authorisation of every route."""
