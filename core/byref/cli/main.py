"""`byref`: the commands, and how errors are shown. Imports no torch: help and lists answer at once."""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from byref import __version__
from byref.cli import batch, bench, chat, config, env, generate, init, models, plugins, pull, serve
from byref.contract.errors import ByrefError

DEBUG = "--debug"
EXTENDED = (["bench"],)
"""Commands without arguments of their own: plugins may add some below them, `byref bench <word>`."""


def build() -> typer.Typer:
    """The program with its own commands."""
    app = typer.Typer(
        name="byref",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        epilog="Enabled plugins may add commands: `byref plugins list` names them.",
    )
    app.callback()(_root)
    app.command("generate")(generate.generate)
    app.command("chat")(chat.chat)
    app.command("batch")(batch.batch)
    app.command("bench")(bench.bench)
    app.command("serve")(serve.serve)
    app.command("models")(models.models)
    app.command("pull")(pull.pull)
    app.command("init")(init.init)
    app.command("env")(env.env)
    app.add_typer(plugins.app, name="plugins")
    app.add_typer(config.app, name="config")
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 an error in a sentence, 2 wrong usage, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    own = given[: given.index("--")] if "--" in given else given
    debug = DEBUG in own
    if debug:
        given.remove(DEBUG)
    try:
        app = build()
        _add_plugin_command(app, given)
        app(args=given, prog_name="byref")
    except ByrefError as error:
        _fail(f"byref: {error}", error, debug)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader has seen enough; nothing may be written on the way out
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        _fail(_unforeseen(error), error, debug)


def _unforeseen(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:  # a file that the user named, as good as always
        return f"byref: {error.strerror}\n  in: {error.filename}\n  try: {DEBUG} shows who wanted it"
    whose = "this is a mistake of byref's or of an enabled plugin's"
    return f"byref: {type(error).__name__}: {error}\n  {whose}; {DEBUG} shows more"


def _fail(message: str, error: Exception, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    else:
        print("\n".join([message, *(f"  {note}" for note in getattr(error, "__notes__", ()))]), file=sys.stderr)
    sys.exit(1)


def _version(asked: bool) -> None:
    if asked:
        print(f"byref {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[bool, typer.Option("--version", help="Print it.", callback=_version, is_eager=True)] = False,
    debug: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an error; may stand anywhere.")] = False,
) -> None:
    """An LLM inference runtime whose features are plugins."""


def _add_plugin_command(app: typer.Typer, arguments: list[str]) -> None:
    """Add the command that is asked for, if it is a plugin's. Plugins are loaded for no other. The two words of one
    below a command of ours become one argument."""
    if arguments[:1] in EXTENDED and arguments[1:2] and not arguments[1].startswith("-"):
        arguments[:2] = [" ".join(arguments[:2])]
    name = next(iter(arguments), "-")
    own = [*(command.name or "" for command in app.registered_commands), *(g.name or "" for g in app.registered_groups)]
    mistyped = " " not in name and difflib.get_close_matches(name, own)
    if name.startswith("-") or name in own or mistyped:
        return
    from pkgutil import resolve_name

    from byref.config import load_config
    from byref.plugins import PluginHost
    from byref.plugins.discovery import scan

    settings = load_config()
    target = PluginHost.load(settings).registry.commands.get(name)
    if target is None:
        enabled = ", ".join(settings.plugins.enable) or "none"
        others = ", ".join(other for other in scan() if other not in settings.plugins.enable)
        print(
            f"byref: there is no command {name!r}; plugins may add some\n  in: the enabled plugins: {enabled}"
            f"\n  try: byref --help; or enable the plugin that has it in byref.toml or BYREF_PLUGINS"
            f"{f', of those installed: {others}' if others else ''}",
            file=sys.stderr,
        )
        sys.exit(2)
    command = resolve_name(target)
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name)(command)
