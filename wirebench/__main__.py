"""The command `wirebench` by its module, for launchers and where it is not installed: python -m wirebench VERB ..."""

from wirebench.cli.main import command

if __name__ == "__main__":
    command()
