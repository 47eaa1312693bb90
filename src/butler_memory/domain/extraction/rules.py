"""How the user wants agents to behave from now on: durable instructions, as imperatives about "the user"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from butler_memory.domain.extraction.vocabulary import EVERY_AGENT, IMPERATIVE

LONGEST_RULE = 240


@dataclass(frozen=True)
class Rule:
    content: str
    scope: Literal["global", "butler"]


_POLITE = re.compile(
    r"^(?:(?=[\w ,]{1,80}: )[\w ,]{0,30}\b(?:all of you|(?:all|every)(?: my| the)? (?:agent|butler|assistant)s?)\b"
    r"[\w ,]{0,20}: |(?=.* please )(?!.*\b(?:sa(?:y|id)|told|wrote|ask))[^:,]{1,60},? (?:but|and|so) please "
    r"(?=(?:always|never|do not) )|(?=[^:]{1,70}: )(?![^:]{0,40}(?:'s\b| (?:of|our|his|her|their|self|says?)\b))"
    r"[^:]{0,30}\b(?:rule|told you|know this|listen|remind(?:er|ing)|remember|note|important|request|preference)\b"
    r"[^:]{0,20}: |(?:please|pls|plz|great|thanks|perfect|cool|hey|hi|hello|also|and|but|ok|okay|so|oh|actually|btw|by "
    r"the way|one more thing(?: for (?:the )?future)?|important|note|again|remember(?: to| that)?|note that|be sure to|"
    r"make sure (?:to|you)|I want you to|I would like you to|I need you to|(?:all of you|everyone|(?:all|every)(?: my| "
    r"the)? (?:agent|butler|assistant)s?)(?=[,:]))\b[,:]?\s*)+",
    re.IGNORECASE,
)
_YOU = re.compile(
    r"^(?:you (?:should|must|have to|need to|are to|can)(?=.*\b(?:me|my|I|us|our)\b)|(?:could|can|would|will) you)(?: "
    r"please)? (?=always|never|not\b)",
    re.IGNORECASE,
)
_FROM_NOW_ON = re.compile(
    r"^(?:from now on|going forward|from today(?: on)?|in (?:the )?future|in general|as a (?:general )?rule|"
    r"as a standing (?:rule|instruction)|henceforth|from here on(?: out)?)\b[,:]?\s*|"
    r",?\s*(?:from now on|going forward|in (?:the )?future|from here on(?: out)?)$",
    re.IGNORECASE,
)
_ONLY_THIS_ONCE = re.compile(
    r"\b(?:just this once|this time|this once|for now|today|tonight|tomorrow|right now|for this|in this (?:chat|"
    r"conversation|message|case|letter|document|thread)|(?:in|to|on|of) this|yet|until|this (?:week|month|letter|trip|"
    r"email|evening|morning)|one time|only once|at the moment|the (?:next|following|above|previous) \w+|(?:that|these|"
    r"those) (?!I\b|you\b|the\b)\w+ (?:again|any ?more)|next (?:week|month|"
    r"(?:mon|tues|wednes|thurs|fri)day)|myself|ourselves)\b|"
    r", (?:they|people|(?:the|my|his|her) \w+|(?-i:[A-Z])\w+) (?:says?|said|tells?|told)\b",
    re.IGNORECASE,
)
_ALWAYS = re.compile(
    rf"^(?:always|never(?:,? ever,?)?) (?:please )?{IMPERATIVE}\b(?! (?:me go|that|this)\b) \S", re.IGNORECASE
)
# What one says to anybody: sayings, advice ("back up your data"), and what needs to be pointed at ("never send it").
_TO_ANYBODY = re.compile(
    r"^(?:do not |always |never )*(?:(?:ever,? )?(?:say (?:never|die)|judge|look a gift|run with|stop \w+ing|"
    r"change\b(?: an?\b|$)|bring a|(?:make|keep) (?:a )?promises?|put off|tell (?:a lie|the truth|me the odds)|keep "
    r"(?:smiling|calm|going)|leave (?:home|a man|them)|show (?:fear|weakness)|speak ill|send an? (?:man|boy)|text "
    r"(?:and|an)|start with|make me (?:laugh|smile)|make my day|read the small print|skip (?:leg|breakfast)|assume "
    r"malice|touch (?:an?\b|wood)|(?:wake|hide|push(?! (?:\w+ )?(?:to(?! an?\b)|without)\b)|cook|disturb|spend|go|"
    r"give(?! (?:prices|dates|times|sources)\b)|stop|turn|play|dim|heat|lock|unlock|water|feed|force(?! push))\b"
    r"(?!.*\b(?:me|my|I|us|our|\d+(?:[ap]m)?|(?:after|before|at) (?:midnight|noon|night|bedtime))\b))"
    rf"|(?!keep ){IMPERATIVE} (?:me )?(?:it|them|him|her|that|this|those|these|there|here)\b)"
    r"|\byour (?!answers?\b|repl|sources?\b|work\b|reasoning|responses?\b|messages?\b|e?-?mails?\b|summar|suggest|"
    r"code\b|changes\b|notes?\b|calculat|assumptions|steps\b|output|tone\b|own\b|searches)|\bthan you \w+$|\b(?:before|"
    r"while|until) you (?:leave|serve|speak|eat|cook|drive|go|sleep|drink|leap|judge)|\b(?:that|there|(?<!are "
    r")(?<!is )here|again)$",
    re.IGNORECASE,
)
_DO = re.compile(rf"^(?:do not |never |always )?{IMPERATIVE}\b", re.IGNORECASE)
_DO_NOT = re.compile(rf"^do not (?:ever )?{IMPERATIVE}\b(?! (?:the|that|this|it)\b)", re.IGNORECASE)
# What makes "do not" last: an hour or a day that comes back, a condition, or the word itself.
_LASTS = re.compile(
    r"\b(?:ever|(?:before|after) (?:\d{1,2}(?:[:.]\d\d)?(?: ?[ap]\.?m\b)?|noon|midnight|dinner|lunch|work)(?=$|[ ,.])|"
    r"without (?:asking|my|checking|confirming|confirmation|telling|permission|approval)|unless I|"
    r"on (?:weekends|holidays|\w+days|\w+day (?:mornings|afternoons|evenings|nights))|during (?:class|(?:\w+ )?hours)|"
    r"(?:during|in|at) (?:meetings|the mornings?|the evenings?|weekends|night|dinner))\b",
    re.IGNORECASE,
)
# "When I ask ..., when booking ..., every time you write ...": not "when you are done", which comes once.
_WHEN = re.compile(
    r"^(?:(?:when|whenever|every time|each time|any time|anytime) (?:I (?:ask(?=,| (?:you|for|about|an?|how|what|who|"
    r"whether|if|to)\b)|say|mention|request|send|share|paste|write|tell|want|need|talk|forward|give|start|type|upload|"
    r"refer)\b|(?:you )?(?:book|booking|write|writing|draft|drafting|schedule|scheduling|summari[sz]e|summari[sz]ing|"
    r"plan|planning|answer|answering|reply|replying|respond|responding|translate|translating|suggest|suggesting|"
    r"recommend|recommending|order|ordering|cite|citing|send|sending|create|creating|format|formatting|commit|"
    r"committing|search|searching|explain|explaining|review|reviewing|choose|choosing|quote|quoting|make|making|shop|"
    r"shopping|code|coding)\b(?! (?:the|this|that|it|my next)\b)))(?![^,]*\b(?:this|that|him|her|it|"
    r"later)\b)[^,]{0,120}, (?:please |then |only |just )*(?P<then>.+)$",
    re.IGNORECASE,
)
_ASKED = re.compile(
    r"^(?:the )?user (?:has |also |explicitly )*(?:asked|asks|told|tells|wants|wanted|requested|requests|instructed|"
    r"said|says|insists|insisted|would like|prefers|stated|expects|demanded)(?: (?:me|us|the (?:assistant|agent|"
    r"butler)|butlers|agents))?(?: that)?(?: (?:I|we|the (?:assistant|agent|butler)|agents|butlers))?(?: should| "
    r"must)?(?: to)? (?P<what>(?:always|never) .+)$",
    re.IGNORECASE,
)

_AGREED = re.compile(
    r"(?:,? (?:ok|okay|please|pls|thanks|thank you|got it|deal|right|alright|will you))+$", re.IGNORECASE
)
_REASON = re.compile(
    r",? (?:because|since|as I|thanks)\b.*$|, (?:I|it|that|this|they|he|she|we|my \w+) .*$", re.IGNORECASE
)
_NEXT_CLAUSE = re.compile(r"[,;]? (?:and|but) (?:he|she|they|the user|user)\b|;", re.IGNORECASE)

_ADVERB = r"(?:always|never|often|usually|really|just|also|explicitly|only|ever)"
_I_VERB = re.compile(rf"\bI ((?:{_ADVERB} )?)(?!(?:am|was|can|could|will|would|should|must|may|might)\b)([a-z]+)\b")
_I_AM = re.compile(r"\bI am\b")
_I = re.compile(r"\bI\b")
_AND_ALWAYS = re.compile(r",? and (?=(?:always|never) )")
_IRREGULAR = {"have": "has", "do": "does", "go": "goes"}


def rules_in(voice: str, sentence: str) -> list[Rule]:
    """One, or one for each "never" and "always" in it."""
    each = [rule_in(voice, part) for part in _AND_ALWAYS.split(sentence)]
    return [rule for rule in (each if all(each) or len(each) == 1 else [rule_in(voice, sentence)]) if rule]


def rule_in(voice: str, sentence: str) -> Rule | None:
    """The rule that a sentence gives, if it comes from the user and is to last."""
    if len(sentence) > LONGEST_RULE or _ONLY_THIS_ONCE.search(sentence):
        return None
    if voice == "note":
        asked = _ASKED.match(sentence)
        wanted = _NEXT_CLAUSE.split(asked["what"])[0].rstrip(" .!") if asked else ""
        return _rule(_of_him(wanted), sentence) if _ALWAYS.match(wanted) else None
    if voice != "user":
        return None
    content = _durable(_AGREED.sub("", sentence.rstrip(" .!?")))
    is_ours = _WHEN.match(content) or not _TO_ANYBODY.search(content)
    return _rule(content, sentence) if content and is_ours else None


def _durable(sentence: str) -> str:
    """The instruction without what led to it, where something in it says that it lasts."""
    plain = _YOU.sub("", _POLITE.sub("", sentence))
    lasting = _FROM_NOW_ON.sub("", plain)
    lasting = _YOU.sub("", _POLITE.sub("", lasting))
    if lasting != plain and _DO.match(lasting):
        return _REASON.sub("", lasting)
    if _ALWAYS.match(plain) or (_DO_NOT.match(plain) and _LASTS.search(plain)):
        return _REASON.sub("", plain)
    when = _WHEN.match(plain)
    return plain if when and _DO.match(when["then"]) else ""


def _rule(content: str, sentence: str) -> Rule:
    return Rule(_about_the_user(content), "global" if EVERY_AGENT.search(sentence) else "butler")


def _about_the_user(text: str) -> str:
    """In the third person: whoever follows the rule is not who gave it."""
    text = re.sub(r"\s*,? please$", "", text, flags=re.IGNORECASE)
    text = re.sub(r", please ", ", ", text, flags=re.IGNORECASE)
    text = _I_AM.sub("the user is", text)
    text = _I_VERB.sub(lambda m: f"the user {m[1]}{_third_person(m[2])}", text)
    text = _I.sub("the user", text)
    text = re.sub(r"\bmy\b", "the user's", text, flags=re.IGNORECASE)
    text = re.sub(r"\bme\b", "the user", text, flags=re.IGNORECASE)
    return text[:1].upper() + text[1:]


def _of_him(text: str) -> str:
    """In an agent's note it is "his" address that must not be shared."""
    return re.sub(r"\bhim\b", "the user", re.sub(r"\b(?:his|her)(?= [a-z])", "the user's", text))


def _third_person(verb: str) -> str:
    if verb in _IRREGULAR:
        return _IRREGULAR[verb]
    if verb.endswith(("s", "sh", "ch", "x", "z", "o")):
        return verb + "es"
    if verb.endswith("y") and verb[-2:-1] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + "s"
