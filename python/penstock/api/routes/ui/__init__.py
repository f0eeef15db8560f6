"""Endpoints under `/ui/api`: what the web page needs beside the public API."""
