"""Communicators and the engines that start them."""
