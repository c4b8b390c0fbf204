"""Frameworks that start a capture themselves: Lightning, Hugging Face's Trainer, accelerate, Ray, torch's autoload.

Users import them by short names (rankscope.lightning, …), which stay. They may use `cli`, whose words they take.
"""
