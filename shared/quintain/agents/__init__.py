"""Agents of other frameworks as targets: ``python -m quintain.agents MODULE:NAME`` speaks for one of them.

Each framework has an adapter in a module of its own, which is imported only for an agent of that framework.
"""
