"""Common English words, each one token (with the space before it) in SmolLM2's vocabulary and in most others."""

from __future__ import annotations

TEXT = """
that with from this have your their they will which more other about were also part some self when time under
there than over know people like year such been help what would need work many used only first child system
learn where health should well every high world even water sign just make years data call then result those
each effect while during found count long after using life test very being find right person back both follow
does grow much main before level study great food start good might school within class often around made said
show same power design provide again small allow care less down take human treat state called point number
build play though body must plan common want three cell pass change public still better hand report place list
feel light become energy open mean keep others best direct name home move among mark look things large think
means rest here women pain area family object early focus access last risk making print impact period land
blood case since local head post along value order come text across cost times areas cause able toward view
major course model else hard line tool future plant role until second young works always exist levels step
today given strong little range ways book next four short past space amount free heart later author says needs
words give paper kind mind skills field begin expect cells story upon types enough likely record days makes
away ever going left path higher growth full super fund sure never side brain plants death term unique ground
groups above event least sound near affect really rather became reason cancer nature loss cases detail size
hold lower meet global word simple city living single wind source either once seen deep house done file team
fails engine online live fall market action circle idea sent quick reduce target break soft ensure rights mass
parts seem lives port entire share rate came stress clear below image whole events taken music money avoid
adult states taking tell allows review site five white check drug tools harm close doing skin clean itself
began sense week love remain weight offer true accept matter black draw bring took feed green fish
"""
WORDS = tuple(TEXT.split())
