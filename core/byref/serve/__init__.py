"""The engine behind HTTP, in the shape of OpenAI's API. Knows the engine's front door; no tensor and no plugin's noun.

Importing it needs the extra `serve` (FastAPI, uvicorn, sse-starlette, prometheus-client).
"""
