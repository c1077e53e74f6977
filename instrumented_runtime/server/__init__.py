"""An OpenAI-compatible server around the engine, in virtual time or on a GPU: see `docs/server.md`.

The engine has a thread of its own; the HTTP side hands it jobs and gets what they yield, and waits
for nothing that it does.
"""
