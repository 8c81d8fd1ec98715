"""Where stories happen, and what happens: sentences with fields.

``h_`` is the hero, ``f_`` the friend; ``{place}`` is a key of `PLACES`, ``{spot}`` and ``{spot2}`` are its corners.
"""

from .phrasing import each, pairs

_PLACES = pairs("""
    in the forest=under an old oak, behind a mossy stone, near a quiet pond, between the tall firs, beside a hollow
    tree / in the mountains=behind a grey rock, at the edge of the snow, near a cold spring, in a narrow valley, beside
    a small hut / in a small village=behind the mill, near the old well, beside the church, in the market square, at the
    bakery / in a big city=near the station, behind the museum, on a green bench, under a bridge, at the street corner /
    in a castle=in the highest tower, behind a heavy curtain, in the dusty cellar, near the gate, under a wooden table /
    in the desert=beside a tall cactus, behind a sand dune, near a hidden well, under three palm trees, in the shade of
    a rock / in the garden=under the apple tree, behind the roses, beside the wooden fence, near the watering can,
    between the cabbages / in a harbour=behind a fishing boat, near the lighthouse, under a torn net, at the end of the
    pier, beside a pile of ropes / in the jungle=under a giant leaf, near a green waterfall, behind a wall of vines,
    beside a warm river, on a fallen trunk / on a farm=in the barn, behind the hay, near the duck pond, beside the
    tractor, under the cherry tree / on an island=on the white beach, behind a palm tree, in a dark cave, near the blue
    lagoon, beside an old boat / in space=behind a small moon, near a bright comet, on a dusty planet, beside a sleeping
    star, in an old rocket""")
PLACES = {place: spots.split(", ") for place, spots in _PLACES.items()}
_FRIENDS, _HOME, _MORAL, _HABIT, _ARRIVES = each("""[From that day on|Since then|After that|Ever since], [{h_name} and
    {f_name}|the two|the {h_kind} and the {f_kind}] [were good friends|were best friends|met every day|were never
    apart|always helped each other]. / [In the evening|At sunset|When the moon rose|Before night fell], they
    [sat|rested] {spot2} and [shared some {food}|laughed about it all|told each other stories|ate {food}|looked at the
    stars]. / And {h_name} [knew now|had learned|never forgot] that [a friend is worth more than gold|nobody has to be
    alone|it helps to ask|small steps lead far|even the smallest can help|kindness comes back]. /
    [{h_They} loved to [walk around|sing|dream|watch the clouds|collect stones] {spot}.|Every morning {h_they} went for
    a walk.|{h_They} was always {good} to everyone.|Most of all {h_they} liked {food}.|] /
    [Then|Just then|A little later|After a while|By chance] {f_a_kind} called {f_name} [came along|passed by|came
    by].""")
_MEET = each("""[Once upon a time|Once|Long ago|One summer|Many years ago], [there was|there lived] a
    [little|young|clever|shy|small|{good}] {h_kind} called {h_name} {place}. / [{Place} lived|{Place} there lived] a
    [little|young|{good}|lonely|curious] {h_kind} [called|named] {h_name}. / {h_name} was a
    [little|young|{good}|curious|dreamy] {h_kind} who lived {place}.""")
# What several plots have in common.
_SHARED = {
    "MEET": f"[{'|'.join(_MEET)}]",
    "END": f"[{_FRIENDS}|{_FRIENDS}|{_HOME}|{_MORAL}|{_HOME} {_MORAL}|{_HOME} {_FRIENDS}]",
    "HABIT": _HABIT,
    "ARRIVES": _ARRIVES,
}
_PLOTS = (
    each("""MEET / [{h_They} had a {thing} and took it everywhere.|{h_Their} dearest treasure was a {thing}.|Nothing
        was dearer to {h_them} than {h_their} {thing}.] / [One morning|One day|One windy evening|But one day], the
        {thing} was [gone|missing|nowhere to be found]. / {h_name} [looked everywhere|searched all day|asked everyone],
        but [could not find it|it did not turn up|found nothing]. / ARRIVES / ["Why are you so sad?"|"What is the
        matter?"|"What are you looking for?"] [asked {f_name}|{f_they} asked]. / ["I have lost my {thing}," said
        {h_name}.|"My {thing} is gone," {h_name} [said|sighed|answered].] / [They searched together|The two looked for
        it together|{f_name} helped {h_them} to search], and [at last|in the end|soon] {f_name} found it {spot}. /
        [{h_name} [jumped for joy|was so happy|laughed with joy] and [thanked {f_them}|hugged {f_them}].|{h_name}
        thanked {f_them} with [some {food}|a big smile].] / END"""),
    each("""MEET / HABIT / [One day|One night|One autumn day|One afternoon], a [terrible|great|wild|heavy] storm [came
        up|broke loose|began]. / {h_name} was far from home, [cold and afraid|and the rain did not stop|wet to the
        bones]. / [Then|Suddenly] {h_they} saw a [small|warm|faint] light {spot}. / It was the home of {f_a_kind} called
        {f_name}. / ["Come in and get warm!"|"Come in, you must be cold!"|"Quick, come inside!"] [said {f_name}|called
        {f_name}|{f_they} said]. / [{f_They} gave {h_them} [some {food}|a blanket|a warm place to sleep]|They ate {food}
        together], and [outside|far away] the storm [grew quiet|went on its way|passed]. /
        [In the morning|The next day], the sun shone, and {h_name} [thanked {f_them} and went home|went home
        happily|promised to come back soon]. / END"""),
    each("""MEET / HABIT / [One day|One afternoon|One morning], {h_they} [walked|wandered|went] [too far|farther than
        ever before] and [lost the way|could not find the way home|got lost]. / [It grew dark|The sun went down|Fog came
        up], and {h_name} [sat down {spot} and cried|did not know what to do|called for help]. /
        [A friendly|A wise|A kind] {f_kind} [called|named] {f_name} heard {h_them}. / ["Don't be afraid, I know the
        way,"|"I will bring you home,"|"Follow me,"] [said {f_name}|{f_they} said]. / [They walked|Side by side they
        went|{f_name} led {h_them}] past [the place {spot2}|many strange shadows|hills and stones], and [{f_name} sang a
        song|neither of them was afraid|the moon showed them the path]. / [At last|Before midnight|Late at night]
        {h_name} [saw {h_their} own home|was home again|stood at {h_their} own door]. / ["Thank you, {f_name}!" {h_they}
        [said|called].|{h_They} thanked {f_them} [with all {h_their} heart|and gave {f_them} some {food}].] / END"""),
    each("""MEET / {h_They} was [{good}|happy], but {h_they} was [afraid of|very afraid of] {fear}. /
        [The others laughed about it.|{h_They} told nobody about it.|So {h_they} [often stayed|mostly stayed] at
        home.] / One day, {h_they} heard [a cry|somebody call] {spot}: {f_a_kind} called {f_name} was [in trouble|in
        danger|stuck] there. / [There was no time to be afraid.|{h_name} did not think of {fear}.|{h_name} took a deep
        breath.] / {h_They} [ran|hurried] to {f_name} and [pulled {f_them} out|helped {f_them}|brought {f_them} to
        safety]. / ["You are very brave!"|"You saved me!"|"How brave you are!"] said {f_name}. /
        {h_name} [smiled|was surprised|laughed]: [{h_they} had forgotten {h_their} fear|{fear} did not seem so bad any
        more|the fear was gone]. / END"""),
    each("""MEET / {h_They} [wanted to learn to|wished to learn to|dreamed that {h_they} could] {skill}. /
        [Every day|All summer|Day after day] {h_they} tried it {spot}, but [it never worked|it always went wrong|nothing
        came of it]. / [{h_They} was about to give up.|"I will never learn it," {h_they} [said|sighed].] /
        [Then|One day] {h_they} met {f_a_kind} called {f_name}, who could {skill} [very well|better than anyone|like
        nobody else]. / ["Can you teach me?" asked {h_name}.|"Please show me how," said {h_name}.] /
        ["Of course," said {f_name}, "but [it takes time|you must be patient|we start slowly]."|{f_name} [nodded|smiled
        and nodded]. "[Start slowly|Have patience]," {f_they} said.] / They practised [every day|day and night|all
        week], and [at last|one morning|after many days] {h_name} could {skill}. / [Everybody came to see it.|Everybody
        clapped.|{h_They} was very proud.|{f_name} was very proud of {h_them}.] / END"""),
    each("""MEET / [The winter was long|It was a hard winter|The harvest had been bad], and {h_they} had [nothing to
        eat|no more food|nothing left in the kitchen]. / [Hungry and tired|With an empty stomach], {h_they} [set out to
        look for food|went from door to door|walked and walked]. / There {h_they} met {f_a_kind} called {f_name}. /
        ["I am so hungry," said {h_name}.|"Have you something to eat for me?" asked {h_name}.] /
        {f_name} had only a little {food}, but {f_they} [gave {h_them} half of it|shared it with {h_them}]. /
        [In spring|When spring came|The next year], [{h_name} found a lot of {food} {spot}|{h_name} had plenty of
        {food}]. / {h_They} [remembered {f_name}|did not forget {f_name}] and brought {f_them} a [big|full|whole]
        basket. / ["You did not forget me!" said {f_name}.|{f_name} [was very happy|could hardly believe it].] /
        END"""),
    each("""MEET / [It was|Tomorrow was] {h_their} birthday, but nobody [seemed to know|said a word about it|seemed to
        remember]. / {h_name} [was sad|sat alone {spot}|felt forgotten]. / Even {h_their} friend {f_name}, {f_a_kind},
        [had no time|just walked by|only said hello]. / ["They have all forgotten me,"|"Nobody thinks of me,"] {h_they}
        [thought|said to the wind]. / In the evening, {h_they} [heard|saw] something strange {spot2}. /
        [There was music, and there were lights everywhere.|There stood a long table with {food}.|Lights were burning,
        and it smelled of {food}.] / ["Surprise!"|"Happy birthday!"] [called {f_name}|called {f_name} and all the
        others]. / {f_name} gave {h_them} a {thing}, and [they danced until midnight|everybody sang|they all ate
        {food}]. / [It was the best birthday of all.|{h_name} had never been so happy.|That night {h_name} fell asleep
        with a smile.]"""),
    each("""MEET / {h_Their} best friend was {f_a_kind} called {f_name}. / One day, they found a {thing} {spot}, and
        [both wanted it|each of them wanted to have it|they began to quarrel]. / ["I saw it first!" [called|said]
        {h_name}. "No, I did!" [called|said] {f_name}.|"It is mine!" said {h_name}. "No, mine!" said {f_name}.] /
        [They parted in anger.|They went home and did not speak for days.|For a whole week they did not talk.] /
        But [{h_name} was sad|the days were long|it was no fun] without {f_name}. / [So|At last] {h_they} [took the
        {thing} and went to {f_name}|went to {f_name} with the {thing}]. / ["You may have it," {h_they} said. "I only
        want my friend back."|"I am sorry," {h_they} said. "Let us share it."] / {f_name} [smiled|was very glad]: ["It
        belongs to both of us."|"We will take turns."] / END"""),
)
PLOTS = tuple(tuple(_SHARED.get(sentence, sentence) for sentence in plot) for plot in _PLOTS)
